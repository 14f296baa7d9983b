"""The embedded data set; only its classes for mmdet and mmseg need mm."""
