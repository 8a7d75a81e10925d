"""What the text formats share: lines of a text, and which texts can be rows or values at all."""
