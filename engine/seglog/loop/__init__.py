"""What event loops share: appends in flight, arrivals of records, long polls."""
