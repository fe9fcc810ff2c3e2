# The first process of a machine (machine_test.go): run by unshare in new namespaces, with an empty directory, the
# sources, a directory that all machines of a document share, the directory of NSQ's tools, and directories that stay as
# they are on this machine.
set -eu
dir=$1 sources=$2 shared=$3 tools=$4
shift 4
mount --make-rprivate /
mount -t tmpfs -o mode=755 machine "$dir"
root=$dir/root
mkdir "$root" "$dir/upper" "$dir/work" "$dir/sources" "$dir/sources-work"
mount -t overlay machine -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mkdir -p "$root/src/penstock" "$root/home/reader" "$root/shared" "$root/opt/nsq"
mount -t overlay sources -o "lowerdir=$sources,upperdir=$dir/sources,workdir=$dir/sources-work" "$root/src/penstock"
rm -rf "$root/src/penstock/data" "$root/src/penstock/cluster-data" "$root/etc/penstock" "$root/var/lib/penstock"
mount --bind "$shared" "$root/shared"
mount --bind "$tools" "$root/opt/nsq"
for kept; do
	mkdir -p "$root$kept"
	mount --bind "$kept" "$root$kept"
done
for tool in "$tools"/*; do ln -sf "/opt/nsq/${tool##*/}" "$root/usr/local/bin/"; done
ln -sf /src/penstock/bin/penstock "$root/usr/local/bin/penstock"
ip link set lo up
exec chroot "$root" bash -c 'echo ready; while :; do sleep 1000 & wait -n; done' # bash, which takes leave of orphans
