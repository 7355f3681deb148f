"""The paper's tables and figures from scratch: plan, train what is missing, measure, write.

experiments (what there is to reproduce) -> plan (what is missing) -> execute (train, `measure`) ->
reports (tables, `figures`). The program calls `execute.reproduce`.
"""
