"""Time series: a decoder forecasts the next value, scored by the mean absolute scaled error."""
