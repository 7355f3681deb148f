"""The paper's tables and figures, from nothing: plan, train what is missing, measure, write.

budgets -> runs -> experiments -> plan -> execute (measure) -> reports -> tables, figures. Nothing
up to the plan needs TensorFlow, so that a mistyped name is answered at once.
"""
