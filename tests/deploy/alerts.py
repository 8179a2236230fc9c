"""Checks what promtool does not: that each alert is complete, has its paragraph in the runbook, and a test of both outcomes.

usage: alerts.py DIRECTORY
"""

import pathlib
import re
import sys

import yaml

REQUIRED = {"summary", "description", "runbook_url"}


def main(directory):
    directory = pathlib.Path(directory)
    load = lambda name: yaml.safe_load((directory / name).read_text(encoding="utf-8"))
    rules = [rule for group in load("alerts.yaml")["groups"] for rule in group["rules"]]
    tests = [test for each in load("alerts_test.yaml")["tests"] for test in each["alert_rule_test"]]
    runbook = (directory / "RUNBOOK.md").read_text(encoding="utf-8")
    paragraphs = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=\n## |\Z)", runbook, re.S | re.M))
    wrong = []
    for rule in rules:
        name = rule["alert"]
        missing = REQUIRED - set(rule["annotations"])
        if missing or rule["labels"].get("severity") not in ("critical", "warning"):
            wrong.append(f"{name}: lacks {sorted(missing) or 'a severity'}")
        elif not rule["annotations"]["runbook_url"].endswith(f"/deploy/prometheus/RUNBOOK.md#{name.lower()}"):
            wrong.append(f"{name}: its runbook_url points elsewhere")
        text = paragraphs.get(name, "").lower()
        if not all(word in text for word in ("**means**", "**look at**", "**do**")):
            wrong.append(f"{name}: the runbook does not say what it means, what to look at and what to do")
        outcomes = {bool(test["exp_alerts"]) for test in tests if test["alertname"] == name}
        if outcomes != {True, False}:
            wrong.append(f"{name}: no test shows it firing and staying quiet")
    for name in set(paragraphs) - {rule["alert"] for rule in rules}:
        wrong.append(f"{name}: is in the runbook, but there is no such alert")
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong or not rules else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
