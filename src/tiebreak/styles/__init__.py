"""How figures look, as style files for matplotlib.

``plt.style.use(["tiebreak.styles.base", "tiebreak.styles.column"])`` takes them. `base` is the look of all our figures:
fonts, lines, colours, letters that stay letters in a PDF. `column` and `page` go on top of it: a figure as wide as one
column of a two-column page (3.25 in), or as both (6.75 in), with letters of 8 points.
"""
