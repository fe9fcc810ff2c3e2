//go:build !race || !(amd64 || arm64)

package lock

import "sync"

// Mutex is a sync.Mutex of class C. The zero value is ready to use. In a build with -race it panics when a goroutine
// breaks the order of classes.
type Mutex[C any] struct{ sync.Mutex }

// RWMutex is a sync.RWMutex of class C. The zero value is ready to use. It is checked like Mutex.
type RWMutex[C any] struct{ sync.RWMutex }
