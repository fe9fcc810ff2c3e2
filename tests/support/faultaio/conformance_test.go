package faultaio_test

import (
	"testing"

	"penstock/segment/aio"
	"penstock/tests/support/aiotest"
	"penstock/tests/support/faultaio"
)

func TestConformance(t *testing.T) {
	aiotest.Run(t, func(*testing.T) aio.Disk { return faultaio.New(faultaio.Options{Seed: 1}) })
}
