"""Checks docs/openapi.json: it is valid OpenAPI 3.1, and what the official SDK writes and reads fits its schemas.

The script `check` beside it installs what this imports, and runs it.
"""

import json
import sys
from pathlib import Path

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "conformance/golden/vectors"
SHARED = {
    "promise": {"$ref": "#/components/schemas/Promise"},
    "request_failed": {"$ref": "#/components/schemas/FailedRequest"},
    # The hosted service may leave out the `type`, which this server always writes.
    "try_again": {"type": "object"},
    # Read from the credential, never sent.
    "whoami": {"type": "object"},
}


def operations(document):
    for methods in document["paths"].values():
        for operation in methods.values():
            yield operation["operationId"], operation


def schema_of(operation, kind):
    if kind == "requests":
        content = operation["requestBody"]["content"]
    else:
        answer = operation["responses"]["200"]
        content = answer.get("x-result", answer.get("content"))
    return content["application/json"]["schema"]


def main():
    document = json.loads((ROOT / "docs/openapi.json").read_text())
    errors = [f"openapi: {error.message}" for error in OpenAPIV31SpecValidator(document).iter_errors()]
    by_name = dict(operations(document))
    checked = 0
    for kind in ("requests", "responses"):
        for path in sorted((VECTORS / kind).glob("*.json")):
            name = path.name.split(".")[0]
            # Answers that several operations share stand by themselves among the vectors.
            schema = SHARED.get(name) or schema_of(by_name[name], kind)
            schema = {**schema, "components": document["components"]}
            body = json.loads(path.read_text())["body"]
            for error in Draft202012Validator(schema).iter_errors(body):
                errors.append(f"{kind}/{path.name}: {error.json_path}: {error.message[:200]}")
            checked += 1
    for error in errors:
        print(error)
    print(f"{len(by_name)} operations, {checked} bodies of the official SDK, {len(errors)} errors")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
