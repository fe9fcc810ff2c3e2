// Package aiotest is the conformance suite of aio. It tests what the rest of the engine relies on, for every
// implementation of aio.Disk. Tests of segment/aio and of faultaio use it. It imports segment/aio.
package aiotest
