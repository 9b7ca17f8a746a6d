"""A power cut for real: a broker on a file system that stops in the middle of the sends.

Theory of operation
-------------------
1. `file_system.py` makes an ext4 file system in an image file and mounts it through a loop device as the broker's
   store, in namespaces of this program: whatever ends it, the kernel removes servers, mount and loop device.
2. `traffic.py` sends from several threads and notes every acknowledged message with its queue offset; another thread
   reads one queue and commits the group's offset to its end.
3. EXT4_IOC_SHUTDOWN stops the file system: from that moment nothing reaches the image, neither dirty pages nor the
   journal. The broker is killed, and the image is mounted again, as it would be after a power cut.
4. The abort file is given the name of another boot, because the machine was not started again. In every second round
   it is left alone: then the broker finds a disk that went away while the machine stayed up.
5. The broker starts again, and `verdict.py` reads everything back.

A control without synchronous flushes must lose messages; otherwise the method would see no losses. The loop device
hands finished writes to the machine's own page cache, so a broker that forgets to wait for the disk's cache, with a
flush that the device ignores, would not be found.
"""
