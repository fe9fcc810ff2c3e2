//go:build !aiopoison

package aio

// poisonDefault: a new arena leaves released buffers as they are.
const poisonDefault = false
