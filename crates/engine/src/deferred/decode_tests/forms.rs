//! The forms of instructions that store, as the assembler knows them and this processor has them.

use crate::deferred::decode;
use iced_x86::{Code, CpuidFeature, EncodingKind, OpCodeOperandKind as Kind, Register};

/// The second operand of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Bank(Register, usize),
    Only(Register),
    Constant,
    /// Not known to the decoder.
    Foreign(Register),
}

/// A form of an instruction that stores to memory.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub code: Code,
    pub source: Source,
    pub has_lane: bool,
    pub is_moffs: bool,
    pub len: usize,
}

fn is_supported(feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    match feature {
        INTEL8086 | INTEL8086_ONLY | INTEL186 | INTEL286 | INTEL386 | INTEL486 | X64 | MMX | SSE | SSE2 | CMOV => true,
        SSE3 => is_x86_feature_detected!("sse3"),
        SSE4_1 => is_x86_feature_detected!("sse4.1"),
        AVX => is_x86_feature_detected!("avx"),
        AVX2 => is_x86_feature_detected!("avx2"),
        AVX512F => is_x86_feature_detected!("avx512f"),
        AVX512BW => is_x86_feature_detected!("avx512bw"),
        AVX512DQ => is_x86_feature_detected!("avx512dq"),
        AVX512VL => is_x86_feature_detected!("avx512vl"),
        MOVBE => is_x86_feature_detected!("movbe"),
        _ => false,
    }
}

fn is_in_memory(kind: Kind) -> bool {
    use Kind::*;
    matches!(
        kind,
        mem | mem_offs
            | r8_or_mem
            | r16_or_mem
            | r32_or_mem
            | r64_or_mem
            | mm_or_mem
            | xmm_or_mem
            | ymm_or_mem
            | zmm_or_mem
    )
}

/// All forms of the instructions that are decoded, as the assembler knows them.
pub fn forms() -> Vec<Form> {
    let form = |code: Code| {
        let info = code.op_code();
        let stores = decode::is_known(code.mnemonic()) && info.mode64() && info.is_instruction();
        if !stores || info.op_count() < 2 || !is_in_memory(info.op0_kind()) {
            return None;
        }
        if let Some(missing) = code.cpuid_features().iter().find(|feature| !is_supported(**feature)) {
            println!("skipping {code:?}: no {missing:?}");
            return None;
        }
        // These can name registers 16 to 31.
        let is_evex = info.encoding() == EncodingKind::EVEX;
        let source = |kind: Kind| match kind {
            Kind::r8_reg => Some(Source::Bank(Register::AL, 20)),
            Kind::r16_reg => Some(Source::Bank(Register::AX, 16)),
            Kind::r32_reg => Some(Source::Bank(Register::EAX, 16)),
            Kind::r64_reg => Some(Source::Bank(Register::RAX, 16)),
            Kind::xmm_reg if is_evex => Some(Source::Bank(Register::XMM0, 32)),
            Kind::xmm_reg => Some(Source::Bank(Register::XMM0, 16)),
            Kind::ymm_reg if is_evex => Some(Source::Bank(Register::YMM0, 32)),
            Kind::ymm_reg => Some(Source::Bank(Register::YMM0, 16)),
            Kind::zmm_reg => Some(Source::Bank(Register::ZMM0, 32)),
            Kind::al => Some(Source::Only(Register::AL)),
            Kind::ax => Some(Source::Only(Register::AX)),
            Kind::eax => Some(Source::Only(Register::EAX)),
            Kind::rax => Some(Source::Only(Register::RAX)),
            Kind::imm8 | Kind::imm16 | Kind::imm32 | Kind::imm32sex64 => Some(Source::Constant),
            Kind::mm_reg => Some(Source::Foreign(Register::MM3)),
            Kind::seg_reg => Some(Source::Foreign(Register::DS)),
            _ => None,
        };
        let source = source(info.op1_kind()).unwrap_or_else(|| panic!("{code:?} has {:?}", info.op1_kind()));
        let has_lane = info.op_count() == 3;
        let is_moffs = info.op0_kind() == Kind::mem_offs;
        Some(Form { code, source, has_lane, is_moffs, len: info.memory_size().size() })
    };
    let forms: Vec<Form> = Code::values().filter_map(form).collect();
    assert!(forms.len() > 40, "{forms:?}");
    forms
}
