"""Frame, style and figures of self-contained HTML pages, for reports and explanations."""
