"""The theorems against simulation."""
