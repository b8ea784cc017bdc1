"""One replica over several processes of a cell: who the ranks are, what of the model is whose, orders and answers."""
