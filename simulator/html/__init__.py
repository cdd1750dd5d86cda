"""Pages to look at: a step as one file that needs no network, a validation, and the what-if page that `dtsim serve` shows.

    prediction --> step_data --> one JSON object --> page.py puts it into a file with assets/*.js and *.css
                                                 \\-> server.py hands it to the what-if page

Everything a page draws is computed here, in Python; the scripts under assets/ only draw, zoom and format.  No library is
vendored into the files: see docs/pages.md.
"""
