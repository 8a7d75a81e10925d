"""Lost redundancy and how it is rebuilt: newcomers, standbys, upstream backup."""
