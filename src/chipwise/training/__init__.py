"""Training of models: data sets, tasks, training loops, scaling laws, and evaluation on tasks.

``data`` contains text sources and the protocol of data sets; ``tasks`` has one folder per task; ``loop`` is the
training loop for one model; ``supernet`` trains weights that models share; ``trainers`` run training jobs on different
machines; ``laws`` are the scaling laws that predict the loss of untrained models; ``evaluations`` score text models on
tasks. :mod:`chipwise.design` chooses what to train.

This module sets an environment variable that makes torch use huge pages, unless the variable is already set. Each step
allocates many megabytes of activations, whose page faults take 2 to 11 % of a training step of small language models on
a Zen 5 core (``benchmarks/huge_pages.py``).
"""

import os

from chipwise.core.workers import HUGE_PAGES

os.environ.setdefault(HUGE_PAGES, "1")  # read by torch at its first allocation
