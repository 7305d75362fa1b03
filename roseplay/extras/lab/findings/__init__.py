"""The conclusions from a result as typed values. ``lab.words`` puts them into words."""
