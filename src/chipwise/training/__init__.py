"""Training: data sets, tasks, training loops, and estimates of a model's quality.

``data`` holds text sources and the protocol of data sets, ``tasks`` one folder per task, ``loop`` the training loop for
one model, ``supernet`` the training of shared weights, ``trainers`` the places where trainings run, ``laws`` the
scaling laws that predict the loss of untrained models, ``evaluations`` the scores of text models on tasks. Choosing
what to train is the work of :mod:`chipwise.design`.

Torch is asked for huge pages: activations of many megabytes are allocated in each step, and their page faults take 2 to
11 % of a step of small language models on a Zen 5 core (``benchmarks/huge_pages.py``). An own value of the variable
counts.
"""

import os

from chipwise.core.workers import HUGE_PAGES

os.environ.setdefault(HUGE_PAGES, "1")  # read by torch at its first allocation
