"""Tools for testing extensions: conformance suites, small models, hypothesis strategies.

Needs pytest and hypothesis."""
