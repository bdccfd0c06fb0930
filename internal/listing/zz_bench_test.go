package listing
import ("testing";"math/rand/v2";"github.com/bctl/bctl/internal/backup")
func BenchmarkBaseSort(b *testing.B) {
	for _, n := range []int{100,1300} {
		b.Run("", func(b *testing.B){
		p := loadTree("/tmp/gt_huge")[0].Entries[:n]
		rand.Shuffle(n, func(i,j int){p[i],p[j]=p[j],p[i]})
		q := make([]backup.Entry, n)
		for b.Loop() { copy(q,p); Sort(q) }
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
		})
		b.Run("fp", func(b *testing.B){
		p := loadTree("/tmp/gt_huge")[0].Entries[:n]
		f := NewFingerprinter()
		b.ReportAllocs()
		for b.Loop() { f.Of(nil,p) }
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
		})
		b.Run("copy", func(b *testing.B){
		p := loadTree("/tmp/gt_huge")[0].Entries[:n]
		q := make([]backup.Entry, n)
		for b.Loop() { copy(q,p) }
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
		})
		b.Run("enc", func(b *testing.B){
		p := loadTree("/tmp/gt_huge")[0]
		p.Entries = p.Entries[:n]
		var c Encoder
		var dst []byte
		b.ReportAllocs()
		for b.Loop() { dst,_ = c.Encode(dst[:0],&p) }
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
		})
		b.Run("dec", func(b *testing.B){
		p := loadTree("/tmp/gt_huge")[0]
		p.Entries = p.Entries[:n]
		dst,_ := Encode(nil,&p)
		b.ReportAllocs()
		for b.Loop() { Decode(dst) }
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
		})
	}
}
