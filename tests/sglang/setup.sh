#!/usr/bin/env bash
# Builds an environment in which SGLang's own classes run on a CPU: about 6 GB and two minutes.
#
#   tests/sglang/setup.sh [FOLDER]       default: .venv-sglang (ignored by git)
#   FOLDER/bin/python -m pytest -m sglang
#
# The version under test is installed; the two others only lie unpacked in FOLDER/versions, for sys.path.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${1:-$root/.venv-sglang}
versions=(0.5.15.post1 0.5.17 0.5.23)
main=0.5.17

python3 -m venv "$target"
pip=("$target/bin/pip" --disable-pip-version-check --quiet)

"${pip[@]}" install torch==2.14.1 torchvision==0.29.1
"${pip[@]}" install --no-deps "sglang==$main"
# What importing the cache classes asks for, and nothing that needs a device.
"${pip[@]}" install transformers==5.12.1 numpy msgspec orjson requests pydantic fastapi pyzmq psutil pillow setproctitle \
  pybase64 aiohttp IPython dill openai partial_json_parser sentencepiece einops gguf compressed_tensors xgrammar triton
# This project: its dependencies by hand, so that its torch requirement does not move the one above.
"${pip[@]}" install xxhash transitions structlog rich pytest pytest-timeout freezegun hypothesis
"${pip[@]}" install --no-deps -e "$root"

mkdir -p "$target/versions"
for version in "${versions[@]}"; do
  [[ $version == "$main" || -d "$target/versions/$version" ]] && continue
  "${pip[@]}" download --no-deps "sglang==$version" -d "$target/versions"
  "$target/bin/python" -m zipfile -e "$target"/versions/sglang-"$version"-*.whl "$target/versions/$version.part"
  mv "$target/versions/$version.part" "$target/versions/$version"
  rm "$target"/versions/sglang-"$version"-*.whl
done

"$target/bin/python" - <<'PYTHON'
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

print("imported", UnifiedRadixCache.__name__, "and", HiRadixCache.__name__)
PYTHON
