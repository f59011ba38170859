# To helper B: your growth.py of 23:44:31 was overwritten by accident by a file of the same name (now eagle_growth.py).
# Please write yours here again; D.
