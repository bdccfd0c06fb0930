package flow

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/telemetry"
)

// Depths returns the number of messages in each queue of these sites. It leaves out queues that do
// not exist.
func (c *Conn) Depths(ctx context.Context, sites []string) ([]telemetry.Queue, error) {
	var list []telemetry.Queue
	for i, name := range []string{"walk", "read", "commit"} {
		queues := streams(sites)[i]
		if len(queues) == 0 {
			continue
		}
		stream, err := c.js.Stream(ctx, queues[0].stream)
		if err != nil {
			return nil, c.unavailable("stream "+queues[0].stream, err)
		}
		last := stream.CachedInfo().State.LastSeq
		found, err := c.consumersOf(ctx, stream, queues[0].stream)
		if err != nil {
			return nil, err
		}
		for at, q := range queues {
			info := found[q.consumer]
			if info == nil {
				continue
			}
			depth := telemetry.Queue{
				Name: name, Waiting: info.NumPending, Unacknowledged: uint64(max(info.NumAckPending, 0)), Last: last,
				Floor: info.AckFloor.Stream, Delivered: info.Delivered.Stream,
			}
			if name != "commit" {
				depth.Site = backup.SiteName(sites[at])
			}
			list = append(list, depth)
		}
	}
	return list, nil
}
