"""Renders kustomizations, and validates objects: built-in kinds by the schemas of Kubernetes' API, others by our own."""

import functools
import json
import os
from pathlib import Path

import common
import jsonschema
import kubernetes_validate

# Oldest, in between, newest: preStop.sleep is in the API from 1.29 on.
VERSIONS = ("1.29", "1.34", "1.37")
SCHEMAS = Path(__file__).with_name("schemas")
# A folder with the custom resource definitions of KEDA, KServe and the Prometheus operator as they publish them: objects are held
# against them as well.
CRDS = os.environ.get("OCELLI_CRDS")


@functools.cache
def rendered(folder):
    """The objects of a kustomization."""
    return common.documents(common.run(common.tool("kubectl"), "kustomize", folder))


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def only(objects, kind):
    (found,) = of_kind(objects, kind)
    return found


@functools.cache
def definitions():
    """The schemas of `CRDS`, by version and kind."""
    found = {}
    for path in Path(CRDS).glob("*.yaml"):
        for definition in common.documents(path.read_text()):
            spec = definition["spec"]
            for version in spec["versions"]:
                name = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                found[name] = version["schema"]["openAPIV3Schema"]
    return found


def strict(schema):
    """A schema that takes no keys but those it names, as the API server drops them."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(part) for key, part in schema.items()}
    # `metadata` is checked by the API server's own rules.
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not open_ended:
        schema["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    if schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


def validate(found):
    """Fails where the API server would refuse the object, or a key would have no effect."""
    group = found["apiVersion"].split("/")[0]
    own = SCHEMAS / f"{found['kind'].lower()}.json"
    if own.exists():
        schema = json.loads(own.read_text())
        assert found["apiVersion"] == schema["properties"]["apiVersion"]["const"]
        jsonschema.Draft202012Validator(schema).validate(found)
        if CRDS:
            schema = strict(definitions()[found["apiVersion"], found["kind"]])
            jsonschema.Draft202012Validator(schema).validate(found)
        return
    assert "." not in group or group.endswith(".k8s.io"), f"no schema for {found['apiVersion']} {found['kind']}"
    for version in VERSIONS:
        kubernetes_validate.validate(found, version, strict=True)


def validate_pod(spec, name):
    """A pod's specification that is part of another kind of object."""
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
