"""Tools for testing extensions of chipwise: conformance suites, small models, and hypothesis strategies.

Needs pytest and hypothesis."""
