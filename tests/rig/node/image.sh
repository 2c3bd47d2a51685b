release=trixie
# What the roles install on a real machine is there already: the nodes have no way to Debian's packages.
packages=acl,ca-certificates,curl,dbus,docker-buildx,docker-cli,docker.io,ethtool,iproute2,iptables,iputils-ping,kmod
packages+=,libpam-systemd,openssh-client,openssh-server,pciutils,pigz,procps,python3,python3-apt,python3-debian,python3-venv
packages+=,rsync,sudo,systemd,systemd-sysv
python=3.13
wheels=(huggingface_hub==2.4.0)
