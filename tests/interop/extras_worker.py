"""A process that can import diffusers and torchao, and keeps them: importing takes longer than any check.

Reads lines of JSON, [script, argument...], and prints a line of JSON for each: {"result": ...} or {"error": traceback}.
"""

import importlib
import json
import sys
import traceback


def main():
    answers = sys.stdout
    # What libraries print is not an answer.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        script, *arguments = json.loads(line)
        try:
            answer = {"result": importlib.import_module(script).run(*arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
