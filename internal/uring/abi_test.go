package uring

import (
	"testing"
	"unsafe"
)

// The numbers are those of include/uapi/linux/io_uring.h, which never change. With a mistake here the kernel would read
// other fields than the ones that were written.
func TestKernelInterfaceLayout(t *testing.T) {
	var s sqe
	var c cqe
	var p params
	for name, pair := range map[string][2]uintptr{
		"io_uring_sqe":              {unsafe.Sizeof(s), 64},
		"io_uring_sqe.fd":           {unsafe.Offsetof(s.fd), 4},
		"io_uring_sqe.off":          {unsafe.Offsetof(s.off), 8},
		"io_uring_sqe.addr":         {unsafe.Offsetof(s.addr), 16},
		"io_uring_sqe.len":          {unsafe.Offsetof(s.len), 24},
		"io_uring_sqe.rw_flags":     {unsafe.Offsetof(s.rwFlags), 28},
		"io_uring_sqe.user_data":    {unsafe.Offsetof(s.userData), 32},
		"io_uring_sqe.buf_index":    {unsafe.Offsetof(s.bufIndex), 40},
		"io_uring_sqe.personality":  {unsafe.Offsetof(s.personality), 42},
		"io_uring_sqe.splice_fd_in": {unsafe.Offsetof(s.spliceFd), 44},
		"io_uring_sqe.addr3":        {unsafe.Offsetof(s.addr3), 48},
		"io_uring_cqe":              {unsafe.Sizeof(c), 16},
		"io_uring_cqe.res":          {unsafe.Offsetof(c.res), 8},
		"io_uring_cqe.flags":        {unsafe.Offsetof(c.flags), 12},
		"io_sqring_offsets":         {unsafe.Sizeof(p.sqOff), 40},
		"io_sqring_offsets.array":   {unsafe.Offsetof(p.sqOff.array), 24},
		"io_cqring_offsets":         {unsafe.Sizeof(p.cqOff), 40},
		"io_cqring_offsets.cqes":    {unsafe.Offsetof(p.cqOff.cqes), 20},
		"io_uring_params":           {unsafe.Sizeof(p), 120},
		"io_uring_params.features":  {unsafe.Offsetof(p.features), 20},
		"io_uring_params.sq_off":    {unsafe.Offsetof(p.sqOff), 40},
		"io_uring_params.cq_off":    {unsafe.Offsetof(p.cqOff), 80},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %d, the kernel has %d", name, pair[0], pair[1])
		}
	}
}
