"""What outsiders test their own parts with: conformance suites, small models, strategies.

Needs pytest and hypothesis.
"""
