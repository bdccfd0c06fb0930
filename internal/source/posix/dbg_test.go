package posix_test
import ("testing";"fmt")
func dbg(t *testing.T, before, after []bool) {
	for i := 0; i < len(before); {
		j := i
		for j < len(before) && before[j]==before[i] && after[j]==after[i] { j++ }
		if !before[i] && after[i] { fmt.Println("left", i, j-i) }
 if before[i] && !after[i] { fmt.Println("lost", i, j-i) }
		i = j
	}
}
