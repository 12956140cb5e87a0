"""kscheduler runs the independent kernels of an unchanged program side by side."""
