//go:build aiopoison

package aio

// poisonDefault: a new arena overwrites released buffers, so that a reader that reads one too late sees garbage.
const poisonDefault = true
