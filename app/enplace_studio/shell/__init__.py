"""The window around the views: its panes, menus, actions, start page and settings."""
