"""Cost of any graph of a user: seconds of each operator by a law of its class, what bounds it, what a change gains.

``law`` prices operators: amounts of work by class times fitted constants, relative to a chip's peak and bandwidth.
``chips`` says what the law needs of a data sheet. ``estimate`` and ``explanation`` hold the answers.
"""
