"""Checks the Dockerfile and the compose file where no container engine is at hand.

The Dockerfile: what is copied from the context exists and is not held back by .dockerignore; what is copied from the build was made
there; every file that the sources include at compile time is copied; the toolchain is the one that Cargo.toml asks for. The compose
file: the schema of the compose specification, and that each path in it exists.

usage: docker.py REPOSITORY
"""

import json
import pathlib
import re
import shlex
import sys
import tomllib

import jsonschema
import yaml

wrong = []


def expect(condition, sentence):
    if not condition:
        wrong.append(sentence)


def instructions(text):
    """(word, rest) of every instruction, with continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [line.split(None, 1) for line in joined.splitlines() if line.strip()]


def is_sent(path, ignore):
    """Whether .dockerignore, in the form used here (`*`, then exceptions), lets a path through."""
    assert ignore[0] == "*" and all(line.startswith("!") for line in ignore[1:]), "this check does not know such a .dockerignore"
    return any(path == line[1:] or path.startswith(line[1:] + "/") for line in ignore[1:])


def included_files(root):
    for source in (root / "src").rglob("*.rs"):
        for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', source.read_text(encoding="utf-8")):
            path = (source.parent / name).resolve()
            if "tests" not in source.parts:
                yield path.relative_to(root)


def check_dockerfile(root):
    steps = instructions((root / "deploy/docker/Dockerfile").read_text(encoding="utf-8"))
    ignore = [line for line in (root / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    cargo = tomllib.loads((root / "Cargo.toml").read_text(encoding="utf-8"))
    runs = " ".join(rest for word, rest in steps if word == "RUN")
    context, final = [], 0
    for index, (word, rest) in enumerate(steps):
        if word == "FROM":
            final = index
        if word != "COPY":
            continue
        *sources, target = [part for part in shlex.split(rest) if not part.startswith("--")]
        if "--from=build" in rest:
            for source in sources:
                expect(f"mkdir -p {source.rstrip('/')}" in runs, f"no step of the build makes {source}")
            continue
        for source in sources:
            context.append(source)
            expect((root / source).exists(), f"COPY {source}: there is no such file")
            expect(is_sent(source, ignore), f"COPY {source}: .dockerignore holds it back")
    for path in included_files(root):
        copied = any(path.is_relative_to(source) for source in context)
        expect(copied, f"{path} is included at compile time, but not copied")
    binaries = {cargo["package"]["default-run"]}
    built = set(re.findall(r"--bin (\S+)", runs))
    expect(built == binaries, f"the image builds {built}, the package has {binaries}")
    expect("cp target/release/sluice /out/bin/sluice" in runs, "the binary is not copied out of the cache")
    expect("ln -s sluice /out/bin/ratelimit" in runs, "/bin/ratelimit is not linked to sluice")
    for path in [*(target["path"] for target in cargo["bin"] + cargo["example"]), "build.rs", "src/lib.rs", "src/main.rs"]:
        expect(path in runs, f"cargo fetch would miss {path}")
    image = next(rest for word, rest in steps if word == "FROM")
    expect(image.startswith(f"rust:{cargo['package']['rust-version']}-"), f"{image} is not the toolchain of Cargo.toml")
    last = dict(step for step in steps[final:] if step[0] in ("USER", "ENTRYPOINT", "EXPOSE", "FROM"))
    expect(last["FROM"] == "gcr.io/distroless/cc-debian12:nonroot", f"the image is made from {last['FROM']}")
    expect(last["USER"] == "65532:65532", "the image does not run as 65532")
    expect(json.loads(last["ENTRYPOINT"]) == ["/bin/sluice"], "the image starts something else")
    expect(last["EXPOSE"].split() == ["8080", "8081"], "the image exposes other ports")
    expect(not any(word == "ENV" for word, _ in steps[final:]), "a setting in the image would outvote older manifests")


def check_compose(root, schema):
    path = root / "deploy/docker/compose.yaml"
    compose = yaml.safe_load(path.read_text(encoding="utf-8"))
    # `name` came into the specification after this copy of its schema.
    jsonschema.validate({key: value for key, value in compose.items() if key != "name"}, json.loads(schema))
    services = compose["services"]
    for name, service in services.items():
        build = service.get("build")
        if build:
            context = path.parent / build["context"]
            expect(context.resolve() == root, f"{name}: the build context is not the repository")
            expect((context / build["dockerfile"]).exists(), f"{name}: there is no {build['dockerfile']}")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            expect((path.parent / source).exists(), f"{name}: there is no {source}")
        for wanted in service.get("depends_on", []):
            expect(wanted in services, f"{name}: there is no service {wanted}")
        for port in service.get("ports", []):
            expect(port.startswith("127.0.0.1:"), f"{name}: the port {port} is open to the network")
        image = service["image"]
        expect(re.search(r":[^:/]*\d[^:/]*$", image), f"{name}: the image {image} has no version")
    host, port = services["sluice"]["environment"]["REDIS_URL"].split(":")
    expect(host in services and port == "6379", f"no service is called {host}")
    envoy = yaml.safe_load((path.parent / "envoy.yaml").read_text(encoding="utf-8"))
    (cluster,) = [each for each in envoy["static_resources"]["clusters"] if each["name"] == "sluice"]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    expect(endpoint == {"address": "sluice", "port_value": 8081}, f"Envoy asks at {endpoint}")
    for name in services["sluice"]["environment"]:
        print(name)


def main(repository):
    root = pathlib.Path(repository).resolve()
    # docker-compose 1 carries the schema of the specification. Only that file of it is used.
    (schema,) = (pathlib.Path(sys.prefix) / "lib").glob("python3*/site-packages/compose/config/compose_spec.json")
    check_dockerfile(root)
    check_compose(root, schema.read_text(encoding="utf-8"))
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
