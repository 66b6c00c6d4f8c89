"""Pages: one HTML file that needs no network, in one style; what reports and explanations are drawn with."""
