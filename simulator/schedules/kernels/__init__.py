"""Compiled rules of schedules whose order is decided action by action; imported only when such an order is made."""
