package faultaio_test

import (
	"testing"

	"penstock/segment/aio"
	"penstock/segment/aio/aiotest"
	"penstock/segment/aio/faultaio"
)

func TestConformance(t *testing.T) {
	aiotest.Run(t, func(*testing.T) aio.Disk { return faultaio.New(faultaio.Options{Seed: 1}) })
}
