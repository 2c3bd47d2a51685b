release=bookworm
packages=ca-certificates,iproute2,libgomp1,libnuma1,procps,python3-pip-whl,python3-venv
# torch's CPU build is to be had for this Python only.
python=3.11
wheels=(--no-deps --requirement torch.txt --requirement libraries.txt --requirement vllm.txt)
