"""CSV, one record per line: lines, their columns of text, and the pattern of lines that can be rows."""
