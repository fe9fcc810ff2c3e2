//go:build aiopoison

package aio

// poisonDefault: a new arena overwrites released buffers, so that who reads one too late sees it.
const poisonDefault = true
