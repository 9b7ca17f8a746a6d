#!/bin/sh
# Collect what a virtual environment needs to run into a folder: Python, its library, shared libraries, an account.
#
#   collect_rootfs.sh ENVIRONMENT ROOT
set -eu
environment=$1
root=$2
python=$(readlink -f "$environment/bin/python3")
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/etc" "$root/data" "$root/tmp"
for folder in bin lib lib64; do
  if [ -L "/$folder" ]; then ln -s "usr/$folder" "$root/$folder"; fi
done
mkdir -p "$root/usr/lib64"

cp "$python" "$root/usr/bin/"
ln -s "$(basename "$python")" "$root/usr/bin/python3"
mkdir -p "$root$library" "$root$(dirname "$environment")"
cp -r "$library/." "$root$library"
cp -r "$environment" "$root$(dirname "$environment")"

# Parts that no server uses, some of which need large libraries.
cd "$root$library"
rm -rf ensurepip idlelib lib2to3 pydoc_data test tkinter turtledemo unittest/test config-*
rm -f lib-dynload/_curses*.* lib-dynload/readline.* lib-dynload/_tkinter.* lib-dynload/_dbm.*
find "$root$library" "$root$environment" -depth -type d \( -name tests -o -name _tests -o -name __pycache__ \) -exec rm -rf {} +

# Shared libraries of everything collected, and the loader.
find "$root" -type f \( -name '*.so' -o -name '*.so.*' -o -path "$root/usr/bin/*" \) -exec ldd {} + 2>/dev/null \
  | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\).*/\1/p' | sort -u \
  | while read -r needed; do
      mkdir -p "$root$(dirname "$needed")"
      cp -L "$needed" "$root$needed"
    done
if [ -e /etc/ssl/openssl.cnf ]; then
  mkdir -p "$root/usr/lib/ssl"
  cp /etc/ssl/openssl.cnf "$root/usr/lib/ssl/"
fi

# Compiled once, because the root file system may be read-only.
chroot "$root" /usr/bin/python3 -m compileall -q -j 0 "$library" "$environment" >/dev/null || true

echo 'rocketmq:x:10001:10001:RocketMQ:/data:/nonexistent' > "$root/etc/passwd"
echo 'rocketmq:x:10001:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
chown 10001:10001 "$root/data"
chmod 1777 "$root/tmp"
