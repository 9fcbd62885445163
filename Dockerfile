# dplinked with what links files and the studio's command line: docker build --tag dplinked . && docker run --rm --volume "$PWD:/data" dplinked fit study.toml
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt hatch_build.py README.md LICENSE ./
COPY src src
COPY docs docs
RUN python -m venv /opt/dplinked && /opt/dplinked/bin/pip install --no-cache-dir --constraint constraints.txt '.[linkage]'

FROM python:3.12-slim
COPY --from=build /opt/dplinked /opt/dplinked
RUN useradd --create-home steward
USER steward
WORKDIR /data
ENTRYPOINT ["/opt/dplinked/bin/dplinked"]
CMD ["--help"]
