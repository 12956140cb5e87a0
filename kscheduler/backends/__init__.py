"""What executes tasks: one file per kind of device."""
