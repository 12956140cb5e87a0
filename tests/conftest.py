"""One torch thread in all tests: they run beside kscheduler's own threads, and on busy machines."""

import torch

torch.set_num_threads(1)
