"""What is written to disk: the schemas of cell, plan, lease and record, and their reading and writing.

Known to every other package; knows none of them, and imports no torch.
"""
