//! Walks the Huffman codes of a JPEG's scans, sequential or progressive, without computing pixels: a scan is complete
//! if there is a code for every block of the frame. The specification is ITU-T T.81, cited below.

/// Bits of a code looked up at once; longer codes are rare.
const LOOKUP_BITS: u32 = 9;

/// Precision of a coefficient that no scan has coded yet.
const NOT_CODED: u8 = u8::MAX;

/// The size of an image and its components.
pub(crate) struct Frame {
    width: usize,
    pub(crate) height: usize,
    is_progressive: bool,
    components: Vec<Component>,
}

struct Component {
    id: u8,
    /// Blocks per interleaved unit, horizontally and vertically.
    horizontal: usize,
    vertical: usize,
    /// For each coefficient, the lowest bit coded so far.
    lowest_bit: [u8; 64],
    /// For each block, its nonzero coefficients: refining them takes a bit each. Progressive frames only.
    nonzero: Vec<u64>,
}

/// A scan header.
pub(crate) struct ScanHeader {
    /// Index in the frame, and numbers of the tables for the DC and AC coefficients.
    components: Vec<(usize, usize, usize)>,
    first: usize,
    last: usize,
    is_refinement: bool,
    lowest_bit: u8,
}

impl ScanHeader {
    /// `None` if it does not fit the frame; the decoder reports why.
    pub(crate) fn parse(segment: &[u8], frame: &Frame) -> Option<Self> {
        let (&num_components, rest) = segment.split_first()?;
        let (selected, rest) = rest.split_at_checked(2 * usize::from(num_components))?;
        let component = |pair: &[u8]| {
            let position = frame.components.iter().position(|component| component.id == pair[0])?;
            Some((position, usize::from(pair[1] >> 4), usize::from(pair[1] & 15)))
        };
        let components = selected.chunks_exact(2).map(component).collect::<Option<Vec<_>>>()?;
        let &[first, last, bits, ..] = rest else { return None };
        let is_usable = !components.is_empty() && first <= last && last < 64;
        let (first, last) = if frame.is_progressive { (first.into(), last.into()) } else { (0, 63) };
        let (is_refinement, lowest_bit) =
            if frame.is_progressive { (bits >> 4 != 0, bits & 15) } else { (false, 0) };
        (is_usable || !frame.is_progressive).then_some(ScanHeader {
            components,
            first,
            last,
            is_refinement,
            lowest_bit,
        })
    }
}

/// The current Huffman tables, by number.
#[derive(Default)]
pub(crate) struct Tables {
    dc: [Option<HuffmanTable>; 4],
    ac: [Option<HuffmanTable>; 4],
}

impl Tables {
    fn dc(&self, number: usize) -> Option<&HuffmanTable> {
        self.dc.get(number)?.as_ref()
    }

    fn ac(&self, number: usize) -> Option<&HuffmanTable> {
        self.ac.get(number)?.as_ref()
    }

    /// Adds the tables of a segment (B.2.4.2).
    pub(crate) fn add(&mut self, mut segment: &[u8]) {
        while let Some((&[kind, ref lengths @ ..], rest)) = segment.split_first_chunk::<17>() {
            let num_values = lengths.iter().map(|&count| usize::from(count)).sum();
            let Some((values, rest)) = rest.split_at_checked(num_values) else { return };
            let tables = if kind >> 4 == 0 { &mut self.dc } else { &mut self.ac };
            if let Some(table) = tables.get_mut(usize::from(kind & 15)) {
                *table = HuffmanTable::new(lengths, values);
            }
            segment = rest;
        }
    }
}

struct HuffmanTable {
    /// Length and value of the code that starts with these bits; length 0 for longer codes.
    lookup: Box<[(u8, u8)]>,
    /// For each length: the code after the last one, and the offset from a code to the index of its value.
    limits: [(i32, i32); 17],
    values: Box<[u8]>,
}

impl HuffmanTable {
    /// `None` if there are more codes than the lengths allow.
    fn new(counts: &[u8], values: &[u8]) -> Option<Self> {
        let mut lookup = vec![(0, 0); 1 << LOOKUP_BITS];
        let mut limits = [(0, 0); 17];
        let (mut code, mut position) = (0i32, 0i32);
        for (length, &count) in (1u32..).zip(counts) {
            let count = i32::from(count);
            if code + count > 1 << length {
                return None;
            }
            limits[length as usize] = (code + count, position - code);
            if length <= LOOKUP_BITS {
                let shift = LOOKUP_BITS - length;
                for i in 0..count {
                    let from = ((code + i) as usize) << shift;
                    let value = *values.get((position + i) as usize)?;
                    lookup[from..from + (1 << shift)].fill((length as u8, value));
                }
            }
            code = (code + count) << 1;
            position += count;
        }
        Some(HuffmanTable { lookup: lookup.into(), limits, values: values.into() })
    }
}

/// The bits of a scan, up to the next marker.
struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    buffer: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 56 {
            let Some(&byte) = self.data.get(self.at) else { return };
            if byte == 0xff {
                // A stuffed zero follows a data byte of 0xff; anything else makes it a marker.
                if self.data.get(self.at + 1) != Some(&0) {
                    return;
                }
                self.at += 1;
            }
            self.at += 1;
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// Up to 16 bits; `None` if the data ends before.
    fn take(&mut self, count: u32) -> Option<u32> {
        if self.count < count {
            self.fill();
        }
        self.count = self.count.checked_sub(count)?;
        let bits = if count == 0 { 0 } else { self.buffer >> (64 - count) };
        self.buffer <<= count;
        Some(bits as u32)
    }

    fn symbol(&mut self, table: &HuffmanTable) -> Option<u8> {
        if self.count < 16 {
            self.fill();
        }
        let (length, value) = table.lookup[(self.buffer >> (64 - LOOKUP_BITS)) as usize];
        if length > 0 {
            self.take(length.into())?;
            return Some(value);
        }
        for length in LOOKUP_BITS + 1..=16 {
            let code = (self.buffer >> (64 - length)) as i32;
            let (limit, to_position) = table.limits[length as usize];
            if code < limit {
                self.take(length)?;
                return table.values.get((code + to_position) as usize).copied();
            }
        }
        None
    }

    /// Continues after the next marker if it is a restart.
    fn restart(&mut self) -> Option<()> {
        (self.buffer, self.count) = (0, 0);
        loop {
            self.at += self.data.get(self.at..)?.iter().position(|&byte| byte == 0xff)?;
            self.at += 1;
            match self.data.get(self.at)? {
                0xd0..=0xd7 => {
                    self.at += 1;
                    return Some(());
                }
                0x00 | 0xff => {}
                _ => return None,
            }
        }
    }
}

impl Frame {
    /// `None` if it is invalid; the decoder reports why.
    pub(crate) fn parse(segment: &[u8], is_progressive: bool) -> Option<Self> {
        let &[bits, y1, y0, x1, x0, num_components, ref rest @ ..] = segment else { return None };
        let (height, width) = (u16::from_be_bytes([y1, y0]).into(), u16::from_be_bytes([x1, x0]).into());
        let component = |part: &[u8]| Component {
            id: part[0],
            horizontal: usize::from(part[1] >> 4),
            vertical: usize::from(part[1] & 15),
            lowest_bit: [NOT_CODED; 64],
            nonzero: Vec::new(),
        };
        let parts = rest.chunks_exact(3).take(num_components.into());
        let components: Vec<Component> = parts.map(component).collect();
        let is_usable = bits == 8
            && width > 0
            && height > 0
            && (1..=4).contains(&components.len())
            && components.len() == usize::from(num_components)
            && components.iter().all(|c| (1..=4).contains(&c.horizontal) && (1..=4).contains(&c.vertical));
        is_usable.then_some(Frame { width, height, is_progressive, components })
    }

    /// Components without any DC scan so far.
    pub(crate) fn num_missing_components(&self) -> usize {
        self.components.iter().filter(|component| component.lowest_bit[0] == NOT_CODED).count()
    }

    /// Whether every coefficient was coded to its last bit.
    pub(crate) fn is_finished(&self) -> bool {
        self.components.iter().all(|component| component.lowest_bit == [0; 64])
    }

    /// Walks the data of a scan. Fails with the first pixel row without data.
    pub(crate) fn walk(
        &mut self,
        scan: &ScanHeader,
        tables: &Tables,
        restart_interval: usize,
        data: &[u8],
    ) -> Result<(), usize> {
        let most = |side: fn(&Component) -> usize| self.components.iter().map(side).max().unwrap_or(1);
        let (max_horizontal, max_vertical) = (most(|c| c.horizontal), most(|c| c.vertical));
        let units_wide = self.width.div_ceil(8 * max_horizontal);
        let units_high = self.height.div_ceil(8 * max_vertical);
        // A scan of one component has no padding to whole units (A.2.2).
        let (wide, high, rows_of_unit) = match *scan.components {
            [(component, ..)] => {
                let Component { horizontal, vertical, .. } = self.components[component];
                let wide = (self.width * horizontal).div_ceil(8 * max_horizontal);
                let high = (self.height * vertical).div_ceil(8 * max_vertical);
                (wide, high, 8 * max_vertical / vertical)
            }
            _ => (units_wide, units_high, 8 * max_vertical),
        };
        let has_tables = |&(_, dc, ac): &(usize, usize, usize)| {
            (!self.needs_dc(scan) || tables.dc(dc).is_some())
                && (!self.needs_ac(scan) || tables.ac(ac).is_some())
        };
        // A scan without its tables cannot be walked; the decoder has defaults.
        let num_units = if scan.components.iter().all(has_tables) { wide * high } else { 0 };
        let mut bits = Bits { data, at: 0, buffer: 0, count: 0 };
        let mut end_of_band_run = 0;
        for unit in 0..num_units {
            let (x, y) = (unit % wide, unit / wide);
            let ends_here = y * rows_of_unit;
            if restart_interval > 0 && unit > 0 && unit.is_multiple_of(restart_interval) {
                bits.restart().ok_or(ends_here)?;
                end_of_band_run = 0;
            }
            for &(component, dc, ac) in &scan.components {
                let component = &mut self.components[component];
                let (across, down) = match scan.components.len() {
                    1 => (1, 1),
                    _ => (component.horizontal, component.vertical),
                };
                let stride = units_wide * component.horizontal;
                if scan.first > 0 && component.nonzero.is_empty() {
                    // DC coefficients come first and take at least a bit each, so the file's size bounds the
                    // allocation.
                    if component.lowest_bit[0] == NOT_CODED {
                        return Err(ends_here);
                    }
                    component.nonzero = vec![0; stride * units_high * component.vertical];
                }
                for i in 0..across * down {
                    let walked = match (self.is_progressive, scan.first, scan.is_refinement) {
                        (false, ..) => walk_sequential(&mut bits, tables.dc(dc), tables.ac(ac)),
                        (true, 0, false) => walk_difference(&mut bits, tables.dc(dc)),
                        (true, 0, true) => bits.take(1).map(drop),
                        (true, ..) => {
                            let block = (y * down + i / across) * stride + x * across + i % across;
                            let nonzero = &mut component.nonzero[block];
                            walk_band(&mut bits, tables.ac(ac), scan, &mut end_of_band_run, nonzero)
                        }
                    };
                    walked.ok_or(ends_here)?;
                }
            }
        }
        for &(component, ..) in &scan.components {
            self.components[component].lowest_bit[scan.first..=scan.last].fill(scan.lowest_bit);
        }
        Ok(())
    }

    fn needs_dc(&self, scan: &ScanHeader) -> bool {
        scan.first == 0 && !scan.is_refinement
    }

    fn needs_ac(&self, scan: &ScanHeader) -> bool {
        !self.is_progressive || scan.first > 0
    }
}

/// A block's DC difference (F.2.2.1).
fn walk_difference(bits: &mut Bits<'_>, table: Option<&HuffmanTable>) -> Option<()> {
    let size = bits.symbol(table?)?;
    bits.take(u32::from(size).min(16)).map(drop)
}

/// All coefficients of a block (F.2.2).
fn walk_sequential(bits: &mut Bits<'_>, dc: Option<&HuffmanTable>, ac: Option<&HuffmanTable>) -> Option<()> {
    walk_difference(bits, dc)?;
    let ac = ac?;
    let mut k = 1;
    while k < 64 {
        let symbol = bits.symbol(ac)?;
        let (run, size) = (symbol >> 4, symbol & 15);
        match (run, size) {
            (15, 0) => k += 16,
            (_, 0) => break,
            _ => {
                bits.take(size.into())?;
                k += usize::from(run) + 1;
            }
        }
    }
    Some(())
}

/// A band of a block's coefficients: first the upper bits, then one further bit per scan (G.1.2.2 and G.1.2.3).
fn walk_band(
    bits: &mut Bits<'_>,
    table: Option<&HuffmanTable>,
    scan: &ScanHeader,
    end_of_band_run: &mut u32,
    nonzero: &mut u64,
) -> Option<()> {
    let table = table?;
    let mut k = scan.first;
    while *end_of_band_run == 0 && k <= scan.last {
        let symbol = bits.symbol(table)?;
        let (run, size) = (symbol >> 4, symbol & 15);
        if size == 0 && run < 15 {
            *end_of_band_run = (1 << run) + bits.take(run.into())?;
            break;
        }
        bits.take(size.into())?;
        let mut zeros_left = run;
        while k <= scan.last {
            let is_refined = scan.is_refinement && *nonzero >> k & 1 == 1;
            if is_refined {
                bits.take(1)?;
            } else if zeros_left == 0 {
                break;
            } else {
                zeros_left -= 1;
            }
            k += 1;
        }
        if size > 0 && k <= scan.last {
            *nonzero |= 1 << k;
        }
        k += 1;
    }
    if *end_of_band_run > 0 {
        *end_of_band_run -= 1;
        if scan.is_refinement && k <= scan.last {
            let band = (u64::MAX >> (63 - scan.last)) & (u64::MAX << k);
            (0..(*nonzero & band).count_ones()).try_for_each(|_| bits.take(1).map(drop))?;
        }
    }
    Some(())
}
